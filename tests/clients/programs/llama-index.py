from checks import BASE, KEY, LONG, LOOK, MODEL, PERSON, PIXEL, TEXT, WEATHER, run
from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

model = OpenAILike(
    model=MODEL, api_base=BASE, api_key=KEY, is_chat_model=True, is_function_calling_model=True, max_retries=0
)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


def text():
    return "".join(part.delta or "" for part in model.stream_chat([ChatMessage(content=TEXT)]))


def tools():
    answer = model.predict_and_call([FunctionTool.from_defaults(get_weather)], user_msg=WEATHER)
    return str(answer)


def schema():
    return model.as_structured_llm(Person).complete(PERSON).raw.model_dump()


def images():
    blocks = [TextBlock(text=LOOK), ImageBlock(url=PIXEL)]
    return str(model.chat([ChatMessage(role="user", blocks=blocks)]).message.content)


def cancel():
    stream = model.stream_chat([ChatMessage(content=LONG)])
    next(stream)
    stream.close()
    return True


run(
    "llama-index-llms-openai-like",
    {"text": text, "tools": tools, "schema": schema, "images": images, "cancel": cancel},
)
