"""What graders in other languages may return instead of a verdict, and what the message says of it."""

BAD_REPLIES = [
    ("", "returned nothing"),
    ("noise", "not one JSON object"),
    ('noise\n{"score": 1}', "not one JSON object"),
    ('{"score": 1}\n{"score": 1}', "not one JSON object"),
    ("[1]", "return {"),
    ("0.5", "return {"),
    ("{}", "neither score nor passed"),
    ('{"score": null}', "neither score nor passed"),
    ('{"score": 1, "passed": true}', "both score and passed"),
    ('{"score": 1.5}', "from 0.0 to 1.0"),
    ('{"score": -0.1}', "from 0.0 to 1.0"),
    ('{"score": NaN}', "not one JSON object"),
    ('{"score": "1"}', "must be a number"),
    ('{"score": true}', "must be a number"),
    ('{"passed": "yes"}', "must be true or false"),
    ('{"pass": true}', "did you mean 'passed'"),
    ('{"score": 1, "rationale": 3}', "rationale must be a string"),
    ('{"score": 1, "metadata": []}', "metadata must be a mapping"),
    ("[" * 100_000, "nested too deeply"),
]
