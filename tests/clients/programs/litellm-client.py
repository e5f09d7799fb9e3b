import json

import litellm
from checks import BASE, KEY, LONG, LOOK, MODEL, PARAMETERS, PERSON, PIXEL, SCHEMA, TEXT, WEATHER, run

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]


def ask(messages, **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return litellm.completion(
        model=f"openai/{MODEL}", api_base=BASE, api_key=KEY, messages=messages, num_retries=0, **more
    )


def text():
    return "".join(part.choices[0].delta.content or "" for part in ask(TEXT, stream=True))


def tools():
    first = ask(WEATHER, tools=TOOLS).choices[0].message
    output = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    messages = [{"role": "user", "content": WEATHER}, first.model_dump(), output]
    return ask(messages, tools=TOOLS).choices[0].message.content


def schema():
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
    return json.loads(ask(PERSON, response_format=wanted).choices[0].message.content)


def images():
    content = [{"type": "text", "text": LOOK}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    return ask([{"role": "user", "content": content}]).choices[0].message.content


def cancel():
    stream = ask(LONG, stream=True)
    next(iter(stream))
    stream.completion_stream.close()
    return True


run("litellm", {"text": text, "tools": tools, "schema": schema, "images": images, "cancel": cancel})
