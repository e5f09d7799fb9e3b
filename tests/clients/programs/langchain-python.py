from checks import BASE, KEY, LONG, LOOK, MODEL, PERSON, PIXEL, SCHEMA, TEXT, WEATHER, run
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url=BASE, api_key=KEY, model=MODEL, max_retries=0)


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


def text():
    return "".join(str(part.text) for part in model.stream(TEXT))


def tools():
    able = model.bind_tools([get_weather])
    messages = [HumanMessage(WEATHER)]
    first = able.invoke(messages)
    return str(able.invoke([*messages, first, get_weather.invoke(first.tool_calls[0])]).text)


def schema():
    return model.with_structured_output({"title": "person", **SCHEMA}, method="json_schema").invoke(PERSON)


def images():
    content = [{"type": "text", "text": LOOK}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    return str(model.invoke([HumanMessage(content)]).text)


def cancel():
    stream = model.stream(LONG)
    next(stream)
    stream.close()
    return True


run("langchain-openai", {"text": text, "tools": tools, "schema": schema, "images": images, "cancel": cancel})
