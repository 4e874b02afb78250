"""A short run of the fuzzer; `make fuzz` is the long one."""

from tests.transport.stream import fuzz


def test_twenty_thousand_inputs_bring_nothing_but_named_errors():
    assert list(fuzz.run(20_000, seed=1))[-1] == 20_000


def test_a_round_is_tried_again_by_its_number_alone():
    def inputs(number: int) -> list[bytes]:
        heard: list[bytes] = []

        class Listening(fuzz.ToListener):
            def feed(self, data: bytes, chunk: int) -> None:
                heard.append(data)
                super().feed(data, chunk)

        targets, fuzz.TARGETS = fuzz.TARGETS, [Listening]
        try:
            fuzz.run_round(5, number)
        finally:
            fuzz.TARGETS = targets
        return heard

    assert inputs(1) == inputs(1) != inputs(2)
