"""A provider of promptfoo."""


def call_api(prompt, options, context):
    config = options["config"]
    if "apiKey" in config:
        return {"error": "the key was copied"}
    text = prompt.upper() if config.get("shout") else prompt
    return {"output": text, "tokenUsage": {"total": 3, "prompt": 2, "completion": 1}, "cost": 0.5}


async def other_call(prompt, options, context):
    return {"output": {"prompt": prompt, "vars": context["vars"]}}
