//! The responses of OpenAI's and Anthropic's APIs, whole and as events.

use serde_json::{Value, json};

use super::{Call, End, Format, Tokens};

/// What was used, as the format states it.
fn usage(format: Format, tokens: Tokens) -> Value {
    let (prompt, written) = (
        tokens.input + tokens.cached_input,
        tokens.output + tokens.reasoning,
    );
    match format {
        Format::Chat => json!({
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": tokens.cached_input, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": tokens.reasoning, "audio_tokens": 0},
        }),
        Format::Responses => json!({
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": tokens.cached_input},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": prompt + written,
        }),
        Format::Messages => json!({
            "input_tokens": tokens.input,
            "cache_creation_input_tokens": tokens.cache_write,
            "cache_read_input_tokens": tokens.cached_input,
            "output_tokens": written,
        }),
    }
}

/// The words that a call writes: as many as it uses, eight at most.
fn words(tokens: Tokens) -> usize {
    usize::try_from(tokens.output).map_or(8, |output| output.clamp(1, 8))
}

/// The body of a response that is not streamed.
pub(super) fn whole(call: &Call, tokens: Tokens, end: End) -> Value {
    let text = "token ".repeat(words(tokens));
    let model = call.model();
    let mut body = match call.format {
        Format::Chat => json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": model,
            "choices": [{"index": 0, "finish_reason": "stop", "logprobs": null,
                "message": {"role": "assistant", "content": text, "refusal": null}}],
        }),
        Format::Responses => response(model, "completed", &text),
        Format::Messages => json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn", "stop_sequence": null,
        }),
    };
    if end != End::Untold {
        body["usage"] = usage(call.format, tokens);
    }
    body
}

/// OpenAI's object of a response.
fn response(model: &str, status: &str, text: &str) -> Value {
    json!({
        "id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": status,
        "model": model, "error": null, "incomplete_details": null, "instructions": null,
        "metadata": {}, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
        "output": [{"type": "message", "id": "item_1", "status": status, "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}]}],
        "usage": null,
    })
}

/// The events of a stream. Half of them stand before its middle, and its usage after that.
pub(super) fn streamed(call: &Call, tokens: Tokens, end: End) -> Vec<String> {
    match call.format {
        Format::Chat => chat_events(call, tokens, end),
        Format::Responses => response_events(call, tokens, end),
        Format::Messages => message_events(call, tokens, end),
    }
}

fn chat_events(call: &Call, tokens: Tokens, end: End) -> Vec<String> {
    let asked = call.body["stream_options"]["include_usage"] == true;
    let chunk = |choices: Value, used: Option<Value>| {
        let mut chunk = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000,
            "model": call.model(), "choices": choices,
        });
        if asked {
            chunk["usage"] = used.unwrap_or(Value::Null);
        }
        format!("data: {chunk}\n\n")
    };
    let delta = |delta: Value, reason: Option<&str>| {
        chunk(
            json!([{"index": 0, "delta": delta, "finish_reason": reason}]),
            None,
        )
    };
    let mut events = vec![delta(json!({"role": "assistant", "content": ""}), None)];
    events.extend((0..words(tokens)).map(|_| delta(json!({"content": "token "}), None)));
    events.push(delta(json!({}), Some("stop")));
    if asked && end != End::Untold {
        events.push(chunk(json!([]), Some(usage(call.format, tokens))));
    }
    events.push("data: [DONE]\n\n".to_owned());
    events
}

/// An event with a name, which its data repeats.
fn event(data: &Value) -> String {
    let name = data["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}

fn response_events(call: &Call, tokens: Tokens, end: End) -> Vec<String> {
    let text = "token ".repeat(words(tokens));
    let mut created = response(call.model(), "in_progress", "");
    created["output"] = json!([]);
    let mut list = vec![json!({"type": "response.created", "response": created})];
    let delta = json!({"type": "response.output_text.delta", "item_id": "item_1",
        "output_index": 0, "content_index": 0, "delta": "token ", "logprobs": []});
    let message = json!({"type": "message", "id": "item_1", "status": "in_progress",
        "role": "assistant", "content": []});
    list.push(json!({"type": "response.output_item.added", "output_index": 0, "item": message}));
    let part = json!({"type": "output_text", "text": "", "annotations": []});
    list.push(
        json!({"type": "response.content_part.added", "item_id": "item_1",
        "output_index": 0, "content_index": 0, "part": part}),
    );
    list.extend((0..words(tokens)).map(|_| delta.clone()));
    list.push(
        json!({"type": "response.output_text.done", "item_id": "item_1", "output_index": 0,
        "content_index": 0, "text": text, "logprobs": []}),
    );
    let mut completed = response(call.model(), "completed", &text);
    if end != End::Untold {
        completed["usage"] = usage(call.format, tokens);
    }
    list.push(json!({"type": "response.completed", "response": completed}));
    for (place, one) in list.iter_mut().enumerate() {
        one["sequence_number"] = json!(place);
    }
    list.iter().map(event).collect()
}

fn message_events(call: &Call, tokens: Tokens, end: End) -> Vec<String> {
    let told = end != End::Untold;
    let mut message = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": call.model(),
        "content": [], "stop_reason": null, "stop_sequence": null,
    });
    if told {
        let first = Tokens {
            output: 1,
            reasoning: 0,
            ..tokens
        };
        message["usage"] = usage(call.format, first);
    }
    let mut list = vec![
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0,
            "content_block": {"type": "text", "text": ""}}),
        json!({"type": "ping"}),
    ];
    list.extend((0..words(tokens)).map(|_| {
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "text_delta", "text": "token "}})
    }));
    list.push(json!({"type": "content_block_stop", "index": 0}));
    let mut last = json!({"type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": null}});
    if told {
        last["usage"] = json!({"output_tokens": tokens.output + tokens.reasoning});
    }
    list.push(last);
    list.push(json!({"type": "message_stop"}));
    list.iter().map(event).collect()
}
