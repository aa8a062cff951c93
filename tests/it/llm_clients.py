"""The clients of OpenAI and Anthropic, and LangChain's models over them, which `./check` installs, unchanged but for their clock.

Reads a call on each line, writes what the client returned or raised. Where a client sleeps, it writes for how long, and goes
on with the next line.
"""

import json
import sys
import time

sys.path.insert(0, sys.argv[1])

import anthropic
import openai
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI


def say(what):
    print(json.dumps(what), flush=True)


def sleep(seconds):
    say({"sleeps": seconds})
    sys.stdin.readline()


time.sleep = sleep

ASKED = [{"role": "user", "content": "Say token."}]


def chat(client, model, stream):
    options = {"stream_options": {"include_usage": True}} if stream else {}
    made = client.chat.completions.create(model=model, messages=ASKED, max_completion_tokens=50, stream=stream, **options)
    if not stream:
        return made.choices[0].message.content, made.usage.total_tokens
    text, total = "", None
    for chunk in made:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        total = chunk.usage.total_tokens if chunk.usage else total
    return text, total


def responses(client, model, stream):
    made = client.responses.create(model=model, input="Say token.", max_output_tokens=50, stream=stream)
    if not stream:
        return made.output_text, made.usage.total_tokens
    text, total = "", None
    for event in made:
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type == "response.completed":
            total = event.response.usage.total_tokens
    return text, total


def messages(client, model, stream):
    def total(usage):
        return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens + usage.output_tokens

    if not stream:
        made = client.messages.create(model=model, messages=ASKED, max_tokens=50)
        return made.content[0].text, total(made.usage)
    with client.messages.stream(model=model, messages=ASKED, max_tokens=50) as made:
        text = "".join(made.text_stream)
        return text, total(made.get_final_message().usage)


def langchain(call):
    """A model of LangChain: what it says and counts, whole or streamed."""
    options = {"model": call["model"], "api_key": call["key"], "max_tokens": 50, "max_retries": call["retries"]}
    if call["format"] == "langchain-openai":
        model = ChatOpenAI(base_url=call["url"] + "/v1", stream_usage=call["usage"], **options)
    else:
        model = ChatAnthropic(base_url=call["url"], **options)
    if not call["stream"]:
        made = model.invoke("Say token.")
    else:
        made = None
        for chunk in model.stream("Say token."):
            made = chunk if made is None else made + chunk
    return made.text, made.usage_metadata and made.usage_metadata["total_tokens"]


for line in sys.stdin:
    call = json.loads(line)
    url, key, retries = call["url"], call["key"], call["retries"]
    if call["format"].startswith("langchain"):
        try:
            text, total = langchain(call)
            say({"text": text, "total": total})
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            say({"error": type(error).__name__, "status": error.status_code, "words": str(error)})
        continue
    if call["format"] == "messages":
        client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=retries)
    else:
        client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=retries)
    try:
        text, total = globals()[call["format"]](client, call["model"], call["stream"])
        say({"text": text, "total": total})
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        retry_after = error.response.headers.get("retry-after")
        say({"error": type(error).__name__, "status": error.status_code, "retry_after": retry_after, "body": error.body,
             "words": str(error)})
