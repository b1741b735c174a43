"""Other people's test suites, run against a broker of ours: `make conformance`.

`python -m tests.conformance` is the command; `suites.py` says what a suite is, `outcomes.py` what a
test can come to, `judgements.py` what is expected of it, `page.py` how docs/conformance.md tells it.
pytest collects nothing here: tests/conformance_tools tests these modules themselves.
"""
