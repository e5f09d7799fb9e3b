import json

from anthropic import Anthropic
from checks import KEY, LONG, LOOK, MODEL, PARAMETERS, PERSON, PIXEL, ROOT, SCHEMA, TEXT, WEATHER, run

client = Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)
TOOLS = [{"name": "get_weather", "input_schema": PARAMETERS}]


def ask(content, **more):
    messages = (
        content
        if isinstance(content, list) and "role" in content[0]
        else [{"role": "user", "content": content}]
    )
    return client.messages.create(model=MODEL, max_tokens=1024, messages=messages, **more)


def text_of(answer):
    return "".join(block.text for block in answer.content if block.type == "text")


def text():
    with client.messages.stream(
        model=MODEL, max_tokens=1024, messages=[{"role": "user", "content": TEXT}]
    ) as stream:
        return "".join(stream.text_stream)


def tools():
    first = ask(WEATHER, tools=TOOLS)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages = [
        {"role": "user", "content": WEATHER},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    return text_of(ask(messages, tools=TOOLS))


def schema():
    return json.loads(
        text_of(ask(PERSON, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}))
    )


def images():
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]}
    return text_of(ask([{"type": "text", "text": LOOK}, {"type": "image", "source": source}]))


def cancel():
    with client.messages.stream(
        model=MODEL, max_tokens=1024, messages=[{"role": "user", "content": LONG}]
    ) as stream:
        for _ in stream.text_stream:
            break
    return True


run("anthropic", {"text": text, "tools": tools, "schema": schema, "images": images, "cancel": cancel})
