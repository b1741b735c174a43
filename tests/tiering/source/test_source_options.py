"""Options of the Spark source: what they mean, and what is said of those that make no sense."""

import pytest

from metadata.operations import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tiering.source.options import OPTIONS, Edge, parse_options
from wal.errors import InvalidSettings

NEEDED = {"bootstrap": "127.0.0.1:9092", "topic": "flights"}


def test_names_are_taken_in_any_case_and_those_of_the_kafka_source_too() -> None:
    plain = parse_options({**NEEDED, "failOnDataLoss": "false"})
    kafka = parse_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:9092",
            "Subscribe": "flights",
            "failondataloss": "False",
        }
    )
    assert plain == kafka
    assert (plain.topic, plain.fail_on_data_loss) == ("flights", False)


def test_what_is_not_given_has_the_defaults_of_the_kafka_source() -> None:
    options = parse_options(NEEDED)
    assert options.fail_on_data_loss
    assert options.starting is None
    assert options.ending is None
    assert options.offsets_per_trigger is None


@pytest.mark.parametrize(
    ("text", "edge"),
    [
        ("earliest", Edge(EARLIEST_TIMESTAMP)),
        (" Latest ", Edge(LATEST_TIMESTAMP)),
        (
            '{"flights": {"0": 23, "1": -2}}',
            Edge(LATEST_TIMESTAMP, by_topic={"flights": {0: 23, 1: -2}}),
        ),
        ('{"0": 23}', Edge(LATEST_TIMESTAMP, by_topic={"flights": {0: 23}})),
    ],
)
def test_offsets_are_words_or_json_with_or_without_the_topic(text: str, edge: Edge) -> None:
    assert parse_options({**NEEDED, "startingOffsets": text}).starting == edge
    assert parse_options({**NEEDED, "endingOffsets": text}).ending == edge


def test_partitions_are_numbers_and_ranges() -> None:
    assert parse_options({**NEEDED, "partitions": "0, 3-5"}).partitions == {0, 3, 4, 5}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topic": ""}, "option topic is missing"),
        ({"bootstrap": "nowhere"}, "bootstrap address 'nowhere'"),
        ({"maxOffsetPerTrigger": "5"}, "option maxOffsetPerTrigger: there is none; there are"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0': must be a positive number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss='maybe': must be true or false"),
        ({"startingOffsets": "{}"}, "startingOffsets='{}': must be earliest, latest, or offsets"),
        ({"startingOffsets": '{"0": -3}'}, "must be earliest"),
        ({"startingOffsets": '{"0": 1.5}'}, "must be earliest"),
        ({"startingOffsets": '{"0": true}'}, "must be earliest"),
        ({"startingOffsets": '{"weather": {"0": 1}}'}, "must be earliest"),
        ({"startingOffsets": "[" * 50}, "must be earliest"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp='yesterday': must be milliseconds"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "give one of them"),
        ({"partitions": "3-1"}, "partitions='3-1': must be numbers"),
        ({"partitions": "0-99999999999"}, "must be numbers below 1,000,000"),
        ({"columns": "value,,key"}, "columns='value,,key': must be names"),
        ({"columns": "value,value"}, "each once"),
        ({"subscribe": "weather"}, "option topic is given twice"),
        ({"topic": "a,,b"}, "topic='a,,b': must be names of topics, each once"),
        ({"topic": "a,a"}, "must be names of topics, each once"),
        ({"subscribePattern": "f.*"}, "options topic and subscribePattern: give one of them"),
        ({"assign": '{"a": [0]}'}, "options topic and assign: give one of them"),
        ({"topic": "", "assign": '{"a": []}'}, "must be topics and their partitions as JSON"),
        ({"topic": "", "assign": '{"a": [true]}'}, "must be topics and their partitions"),
        ({"topic": "", "assign": '["a"]'}, "must be topics and their partitions"),
        ({"topic": "", "subscribePattern": "f("}, "must be a regular expression of RE2"),
        ({"topic": "a,b", "partitions": "0"}, "option partitions is for one topic"),
        ({"topic": "a,b", "startingOffsets": '{"0": 1}'}, "must be earliest"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidSettings, match=complaint.replace("{", r"\{").replace("[", r"\[")):
        parse_options({**NEEDED, **given})


def test_topics_are_named_matched_or_assigned() -> None:
    where = {"bootstrap": "127.0.0.1:9092"}
    named = parse_options({**where, "subscribe": "flights, weather"})
    assert named.topics == ("flights", "weather")
    matched = parse_options({**where, "subscribePattern": "fl.*"})
    assert (matched.topics, matched.pattern) == ((), "fl.*")
    offsets = '{"flights": {"0": 23}, "weather": {"1": -1}}'
    assigned = parse_options(
        {**where, "assign": '{"flights": [0], "weather": [1, 2]}', "startingOffsets": offsets}
    )
    one = assigned.of_topic("weather")
    assert (one.topic, one.partitions) == ("weather", {1, 2})
    assert one.starting == Edge(LATEST_TIMESTAMP, {1: -1})
    other = parse_options(
        {**where, "topic": "flights,delays", "startingOffsets": '{"flights": {"0": 1}}'}
    )
    assert other.of_topic("flights").starting == Edge(LATEST_TIMESTAMP, {0: 1})
    with pytest.raises(InvalidSettings, match="startingOffsets has no offsets for topic delays"):
        other.of_topic("delays")


def test_every_option_is_told_in_one_line() -> None:
    assert all(meaning and "\n" not in meaning for meaning in OPTIONS.values())
