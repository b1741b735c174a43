import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of one class path after each other in one virtual machine.
 *
 * <p>A command line tool of Kafka takes two seconds to start and a tenth of one to do its work, so
 * the tests keep one warm process per Kafka version. What a tool would write and how it would end
 * are caught: its streams go to memory, and its exits are thrown.
 *
 * <p>A request on standard input is the class, the number of arguments, these, and the bytes that
 * the tool finds on its standard input, counted. The answer on standard output is the exit status
 * and what the tool wrote on standard output and standard error, each counted. Numbers are int32,
 * big endian; strings are as in {@link DataInputStream#readUTF}.
 */
public final class ToolRunner {
    /** Thrown where the tool wanted to end the process. */
    private static final class Exited extends Error {
        final int status;

        Exited(int status) {
            super("exit status " + status, null, false, false);
            this.status = status;
        }
    }

    /** A stream that stays where it goes to changes: Scala's console keeps the one it saw first. */
    private static final class Switch extends OutputStream {
        volatile OutputStream target = OutputStream.nullOutputStream();

        @Override
        public void write(int single) throws IOException {
            target.write(single);
        }

        @Override
        public void write(byte[] bytes, int from, int length) throws IOException {
            target.write(bytes, from, length);
        }
    }

    private static final Switch OUTPUT = new Switch();
    private static final Switch ERRORS = new Switch();

    /** The first exit counts: some tools catch what is thrown, and exit again. */
    private static volatile Exited exited;

    /** What the tool wants to be done when the process ends: done when the tool has ended. */
    private static final List<Runnable> hooks = new CopyOnWriteArrayList<>();

    public static void main(String[] arguments) throws IOException {
        Exit.Procedure leave = (status, message) -> {
            if (message != null) {
                System.err.println(message);
            }
            if (exited == null) {
                exited = new Exited(status);
                // A process that has ended writes nothing.
                OUTPUT.target = OutputStream.nullOutputStream();
                ERRORS.target = OutputStream.nullOutputStream();
            }
            throw exited;
        };
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        DataInputStream requests = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(System.out);
        System.setOut(new PrintStream(OUTPUT, true));
        System.setErr(new PrintStream(ERRORS, true));
        while (true) {
            String mainClass;
            try {
                mainClass = requests.readUTF();
            } catch (EOFException end) {
                // Not a return: threads of a tool that failed must not keep the process.
                Runtime.getRuntime().halt(0);
                return;
            }
            String[] toolArguments = new String[requests.readInt()];
            for (int at = 0; at < toolArguments.length; at++) {
                toolArguments[at] = requests.readUTF();
            }
            byte[] input = new byte[requests.readInt()];
            requests.readFully(input);
            run(mainClass, toolArguments, input, answers);
        }
    }

    private static void run(
            String mainClass, String[] arguments, byte[] input, DataOutputStream answers)
            throws IOException {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(input));
        OUTPUT.target = output;
        ERRORS.target = errors;
        exited = null;
        int status = call(mainClass, arguments);
        hooks.forEach(Runnable::run);
        hooks.clear();
        System.out.flush();
        System.err.flush();
        answers.writeInt(exited == null ? status : exited.status);
        for (ByteArrayOutputStream written : new ByteArrayOutputStream[] {output, errors}) {
            answers.writeInt(written.size());
            written.writeTo(answers);
        }
        answers.flush();
    }

    private static int call(String mainClass, String[] arguments) {
        try {
            Class.forName(mainClass)
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Exited)) {
                thrown.getCause().printStackTrace();
            }
            return 1;
        } catch (ReflectiveOperationException missing) {
            missing.printStackTrace();
            return 1;
        }
    }
}
