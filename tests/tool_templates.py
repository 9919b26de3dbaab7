"""Chat templates that know tools: small ones with the constructs of Qwen2.5's and Llama 3.2's; and a tool."""

QWEN = """{%- if tools -%}
    {{- "<|im_start|>system\n# Tools" -}}
    {%- for tool in tools -%}{{- "\n" + (tool | tojson) -}}{%- endfor -%}
    {{- "<|im_end|>\n" -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == "assistant" -%}
        {{- "<|im_start|>assistant" -}}
        {%- if message.content -%}{{- "\n" + message.content -}}{%- endif -%}
        {%- for call in message.tool_calls or [] -%}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + "}\n</tool_call>" -}}
        {%- endfor -%}
        {{- "<|im_end|>\n" -}}
    {%- elif message.role == "tool" -%}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" -%}{{- "<|im_start|>user" -}}{%- endif -%}
        {{- "\n<tool_response>\n" + message.content + "\n</tool_response>" -}}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" -%}{{- "<|im_end|>\n" -}}{%- endif -%}
    {%- else -%}
        {{- "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""
LLAMA = """{%- for message in messages -%}
    {{- "<|im_start|>" + ("ipython" if message.role == "tool" else message.role) + "\n" -}}
    {%- if loop.first and tools -%}{%- for tool in tools -%}{{- (tool | tojson(indent=4)) + "\n" -}}{%- endfor -%}{%- endif -%}
    {%- if message.tool_calls -%}
        {%- if message.tool_calls | length > 1 -%}{{- raise_exception("a single call, please") -}}{%- endif -%}
        {%- set call = message.tool_calls[0].function -%}
        {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + "}" -}}
    {%- else -%}{{- message.content -}}{%- endif -%}
    {{- "<|im_end|>\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""
MISTRAL = LLAMA.replace("""'{"name": "'""", """'[TOOL_CALLS][{"name": "'""").replace(
    "parameters", "arguments"
)
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "integer", "description": "A number."} for name in "ab"},
            "required": ["a", "b"],
        },
    },
}
