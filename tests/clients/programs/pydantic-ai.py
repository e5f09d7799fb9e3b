import base64

from checks import BASE, KEY, LOOK, MODEL, PERSON, PIXEL, TEXT, WEATHER, run
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


def images():
    picture = BinaryContent(base64.b64decode(PIXEL.partition(",")[2]), media_type="image/png")
    return Agent(model).run_sync([LOOK, picture]).output


def schema():
    return Agent(model, output_type=NativeOutput(Person)).run_sync(PERSON).output.model_dump()


run(
    "pydantic-ai-slim",
    {
        "text": lambda: Agent(model).run_sync(TEXT).output,
        "tools": lambda: Agent(model, tools=[get_weather]).run_sync(WEATHER).output,
        "schema": schema,
        "images": images,
    },
)
