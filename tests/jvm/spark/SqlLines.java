import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.SparkSession;

/**
 * A Spark that answers SQL: one statement per line of standard input, and for each of them one line
 * of standard output, "rows" and a JSON array of its rows, or "error" and what Spark says. The
 * arguments are settings, key=value. Ends with its input.
 */
public final class SqlLines {
  public static void main(String[] arguments) throws Exception {
    SparkSession.Builder builder = SparkSession.builder().master("local[1]").appName("tests");
    for (String setting : arguments) {
      String[] parts = setting.split("=", 2);
      builder.config(parts[0], parts[1]);
    }
    SparkSession spark = builder.getOrCreate();
    System.out.println("ready " + spark.version());
    BufferedReader input =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String statement; (statement = input.readLine()) != null; ) {
      try {
        System.out.println("rows " + spark.sql(statement).toJSON().collectAsList());
      } catch (Exception error) {
        System.out.println("error " + error.toString().replace('\n', ' '));
      }
    }
    spark.stop();
  }
}
