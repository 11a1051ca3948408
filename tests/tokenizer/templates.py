#!/usr/bin/env python3
"""Random conversations rendered by transformers with the chat templates of tests/golden/chat_templates.

usage: templates.py FOLDER N [SEED]: writes FOLDER/vectors.jsonl and the templates beside it, for golden_templates.c.
"""
import datetime
import json
import os
import random
import shutil
import sys

import jinja2
from transformers.utils import chat_template_utils

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/chat_templates")
NOW = 1763200800  # ten in the morning of 15 November 2025 UTC: the same day nearly everywhere
TEXTS = ["Hello", "  padded text \n", "two\nlines", "", "naïve café 中文 👍🏽", "quote \"x\" and 'y'", "a <think>\nhm\n</think>\n\nanswer", "12345",
         "{\"json\": [1, 2]}", "tabs\tand\\backslashes", "<tool_response>\nok\n</tool_response>", "a b c", "\n\nleading"]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather in a \"town\"", "parameters": {
    "type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer", "default": 3}}, "required": ["town"]}}},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}, "é": [1.5, 1e-07, None, True, 10000000000000000.0]}}}]


def random_message(rng, role):
    message = {"role": role, "content": rng.choice(TEXTS) + rng.choice(TEXTS)}
    if role == "assistant" and rng.random() < 0.15:
        calls = [{"type": "function", "id": rng.choice(["abcdefghi", "short"]), "function": {"name": "add", "arguments": {"x": rng.randint(0, 9), "y": "é"}}}
                 for _ in range(rng.choice([1, 1, 2]))]
        message = {"role": role, "tool_calls": calls}
        if rng.random() < 0.7:
            message["content"] = rng.choice([rng.choice(TEXTS), ""])
    if role == "assistant" and rng.random() < 0.1:
        message["reasoning_content"] = rng.choice(TEXTS)
    if role == "assistant" and rng.random() < 0.05: # names that transformers makes reasoning_content of
        message[rng.choice(["thinking", "reasoning"])] = rng.choice(TEXTS + [None])
    if role == "tool":
        message["tool_call_id"] = "abcdefghi"
    if role == "user" and rng.random() < 0.05:
        message["content"] = [{"type": "text", "text": rng.choice(TEXTS)}, {"type": "image"}]
    return message


def random_messages(rng):
    messages = [random_message(rng, "system")] if rng.random() < 0.4 else []
    if rng.random() < 0.7:
        for i in range(rng.randint(1, 5)):
            messages.append(random_message(rng, "assistant" if i % 2 else "user"))
    else:
        for _ in range(rng.randint(0 if messages else 1, 6)):
            messages.append(random_message(rng, rng.choice(["user", "assistant", "tool", "system"])))
    return messages


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW)


def render(text, variables, messages, tools, prompt):
    """The text, or None where the template refuses; and the places of its generation blocks."""
    try:
        texts, places = chat_template_utils.render_jinja_template([messages], tools=tools, chat_template=text, add_generation_prompt=prompt,
                                                                  return_assistant_tokens_mask="generation" in text, **variables)
        return texts[0], places[0] if places and "{% generation" in text else None
    except (jinja2.exceptions.TemplateError, TypeError):
        return None, None


def main():
    folder, n, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    rng = random.Random(seed)
    chat_template_utils.datetime = Clock
    os.makedirs(folder, exist_ok=True)
    names = sorted(f for f in os.listdir(TEMPLATES) if f.endswith(".jinja"))
    with open(folder + "/vectors.jsonl", "w") as out:
        for name in names:
            if os.path.realpath(folder) != os.path.realpath(TEMPLATES):
                shutil.copy(os.path.join(TEMPLATES, name), folder)
            text = open(os.path.join(TEMPLATES, name)).read()
            variables = {"bos_token": "<s>", "eos_token": "</s>"}
            drawn = [(random_messages(rng), rng.choice([None, None, TOOLS]), rng.random() < 0.5) for _ in range(n // len(names))]
            asked = [([{"role": "user", "content": question}], None, True) for question in TEXTS[:5]] # what a sample's prompt becomes
            for messages, tools, prompt in drawn + asked:
                rendered, places = render(text, variables, messages, tools, prompt)
                vector = {"template": name, "variables": variables, "messages": messages, "tools": tools, "add_generation_prompt": prompt, "now": NOW,
                          "text": rendered}
                if places is not None and rendered is not None:
                    vector["generated"] = places
                out.write(json.dumps(vector, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
