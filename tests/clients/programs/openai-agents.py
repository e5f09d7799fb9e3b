import os

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import BASE, KEY, LOOK, MODEL, PERSON, PIXEL, TEXT, WEATHER, run
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
Model = OpenAIChatCompletionsModel if os.environ.get("MODE") == "chat" else OpenAIResponsesModel


class Person(BaseModel):
    name: str
    age: int


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


def answer_to(prompt, **more):
    # A client of its own for each: a run has an event loop of its own.
    model = Model(model=MODEL, openai_client=AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0))
    return Runner.run_sync(Agent(name="assistant", model=model, **more), prompt).final_output


def images():
    content = [
        {"type": "input_text", "text": LOOK},
        {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
    ]
    return answer_to([{"role": "user", "content": content}])


run(
    "openai-agents",
    {
        "text": lambda: answer_to(TEXT),
        "tools": lambda: answer_to(WEATHER, tools=[get_weather]),
        "schema": lambda: answer_to(PERSON, output_type=Person).model_dump(),
        "images": images,
    },
)
