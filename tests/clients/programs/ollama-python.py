import base64
import json

from checks import LONG, LOOK, MODEL, PARAMETERS, PERSON, PIXEL, ROOT, SCHEMA, TEXT, WEATHER, run
from ollama import Client

client = Client(host=ROOT)
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "", "parameters": PARAMETERS}}
]


def user_message(content, **more):
    return [{"role": "user", "content": content, **more}]


def text():
    return "".join(part.message.content for part in client.chat(MODEL, user_message(TEXT), stream=True))


def tools():
    messages = user_message(WEATHER)
    while (message := client.chat(MODEL, messages, tools=TOOLS).message).tool_calls:
        name = message.tool_calls[0].function.name
        messages += [message, {"role": "tool", "tool_name": name, "content": "sunny"}]
    return message.content


def schema():
    return json.loads(client.chat(MODEL, user_message(PERSON), format=SCHEMA).message.content)


def images():
    picture = base64.b64decode(PIXEL.partition(",")[2])
    return client.generate(MODEL, LOOK, images=[picture]).response


def cancel():
    stream = client.chat(MODEL, user_message(LONG), stream=True)
    next(stream)
    stream.close()
    return True


run("ollama", {"text": text, "tools": tools, "schema": schema, "images": images, "cancel": cancel})
