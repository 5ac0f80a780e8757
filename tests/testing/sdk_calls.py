"""Run by the Python of the environment of SDKs: talks to a model server with the client of one provider.

Arguments: the provider and the root URL. Prints what the client understood, as JSON.
"""

import json
import sys

TOOL = {"name": "bash", "description": "Run.", "parameters": {"type": "object", "properties": {}}}


def responses(root):
    import openai

    client = openai.OpenAI(base_url=f"{root}/v1", api_key="right", max_retries=1)
    ask = {"model": "m", "input": "two words"}
    said = client.responses.create(**ask, tools=[{"type": "function", "strict": False, **TOOL}])
    call = said.output[-1]
    with client.responses.stream(**ask, include=["message.output_text.logprobs"]) as stream:
        last = stream.get_final_response()
    error = refused(lambda: client.responses.create(**ask), openai.RateLimitError)
    again = client.responses.create(**ask)
    return {
        "call": [call.name, json.loads(call.arguments)],
        "text": last.output_text,
        "usage": [said.usage.input_tokens, said.usage.output_tokens],
        "error": error.body["message"],
        "again": again.output_text,
        "logprobs": [entry.token for entry in last.output[-1].content[0].logprobs],
    }


def messages(root):
    import anthropic

    client = anthropic.Anthropic(base_url=root, api_key="right", max_retries=1)
    ask = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "two words"}]}
    said = client.messages.create(**ask, tools=[{"name": "bash", "input_schema": TOOL["parameters"]}])
    call = said.content[-1]
    with client.messages.stream(**ask) as stream:
        last = stream.get_final_message()
    error = refused(lambda: client.messages.create(**ask), anthropic.RateLimitError)
    again = client.messages.create(**ask)
    return {
        "call": [call.name, call.input],
        "text": last.content[-1].text,
        "usage": [said.usage.input_tokens + said.usage.cache_read_input_tokens, said.usage.output_tokens],
        "error": error.body["error"]["message"],
        "again": again.content[-1].text,
        "count": client.messages.count_tokens(model="m", messages=ask["messages"]).input_tokens,
        "models": [model.id for model in client.models.list()],
    }


def gemini(root):
    from google import genai
    from google.genai import errors

    client = genai.Client(api_key="right", http_options={"base_url": root})
    ask = {"model": "m", "contents": "two words"}
    said = client.models.generate_content(**ask, config={"tools": [{"function_declarations": [TOOL]}]})
    (call,) = said.function_calls
    events = list(client.models.generate_content_stream(**ask, config={"response_logprobs": True}))
    error = refused(lambda: client.models.generate_content(**ask), errors.ClientError)
    refused(lambda: client.models.generate_content(**ask), errors.ClientError)
    again = client.models.generate_content(**ask)
    chosen = [event.candidates[0].logprobs_result.chosen_candidates for event in events[:-1]]
    return {
        "call": [call.name, call.args],
        "text": "".join(event.text or "" for event in events),
        "usage": [said.usage_metadata.prompt_token_count, said.usage_metadata.candidates_token_count],
        "error": error.message,
        "again": again.text,
        "logprobs": [entry.token for one in chosen for entry in one],
        "count": client.models.count_tokens(**ask).total_tokens,
        "models": [model.name for model in client.models.list()],
    }


def refused(call, kind):
    """The error of a call that must fail."""
    try:
        call()
    except kind as error:
        return error
    raise SystemExit("the call did not fail")


if __name__ == "__main__":
    calls = {"responses": responses, "messages": messages, "gemini": gemini}[sys.argv[1]]
    print(json.dumps(calls(sys.argv[2])))
