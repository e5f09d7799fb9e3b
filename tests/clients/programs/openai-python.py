import json

from checks import BASE, KEY, LONG, LOOK, MODEL, PARAMETERS, PERSON, PIXEL, SCHEMA, TEXT, WEATHER, run
from openai import OpenAI

client = OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
TOOLS = [{"type": "function", "name": "get_weather", "parameters": PARAMETERS}]


def text():
    with client.responses.stream(model=MODEL, input=TEXT) as stream:
        return stream.get_final_response().output_text


def tools():
    first = client.responses.create(model=MODEL, input=WEATHER, tools=TOOLS)
    (call,) = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    return client.responses.create(
        model=MODEL, input=[output], previous_response_id=first.id, tools=TOOLS
    ).output_text


def schema():
    wanted = {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}
    return json.loads(client.responses.create(model=MODEL, input=PERSON, text={"format": wanted}).output_text)


def images():
    content = [{"type": "input_text", "text": LOOK}, {"type": "input_image", "image_url": PIXEL}]
    return client.responses.create(model=MODEL, input=[{"role": "user", "content": content}]).output_text


def cancel():
    with client.responses.create(model=MODEL, input=LONG, stream=True, store=False) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    return True


run("openai", {"text": text, "tools": tools, "schema": schema, "images": images, "cancel": cancel})
