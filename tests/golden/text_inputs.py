"""Hard cases for tokenizing and for chat templates, recorded by record_text.py."""

TEXTS = [
    "",
    " ",
    "Hello world",
    " leading and trailing ",
    "a  b   c    d",
    "x   123",
    "   123   456",
    "1234567890 3.14159 1,000,000 0x1F",
    "١٢٣ ४५६ ½ a²³ Ⅷ ①②③",
    "line one\nline two\n\n\nline five\r\n\r\ntabs\t\tand\ttext",
    "\n\n   \n  indented\n\t\tdeeper",
    "trailing spaces   \n",
    "It's we'll they've I'M DON'T 'tis rock 'n' roll",
    "naïve café résumé Ångström",
    "e\u0301 a\u030a n\u0303 Z\u0351\u036b\u0343\u036a\u0302algo",
    "日本語のテキスト、改行なし。",
    "汉字漢字 한국어 ภาษาไทย हिन्दी العربية עברית",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ❤️ 👍🏽",
    "\u200b zero\u200dwidth\u00a0nbsp\u3000wide\ufeffbom",
    "def f(x):\n    return {k: v**2 for k, v in x.items() if k != 'a_b'}  # ok\n",
    "for(int i=0;i<10;++i){a[i]=b[i]&&!c[i];}\t// ->",
    '<div class="a">&amp;</div> https://example.org/a?b=c&d=%20',
    "!!!???...--- === ~~~ ### $$$ @@@",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|> <|im_end|><|endoftext|>x<|endoftext|> y",
    "<|im_start <|im_start|>| im_end|> <repo_name>a/b<file_sep>c",
    "\ufffd \ufffd\ufffd \x00 \x7f \x1b[0m",
    "\U0001d54c\U0001d55f\U0001d55a\U0001d554 𐍈 𒀀 🀄",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "The quick brown fox jumps over the lazy dog. " * 8,
]

# for the tokenizers of record_sentencepiece.py: their special tokens, bytes, spaces and lines
PIECE_TEXTS = [
    "[INST] Hi there [/INST] Hello</s>[INST]x[/INST]",
    "<s>a</s> b<s> <s>c",
    "<unk> and <pad>, <0x0A> and <0xE2><0x96><0x81>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "[ INST] [/INST [INST]]",
    "\u2581 a sign \u2581\u2581that stands for spaces\u2581",
    "    x        y                z",
    "\n\n\n\na\n \n  b\t\tc",
    "<table><tr> a </tr>  </table>",
    "\ufb01sh \uff46\uff55\uff4c\uff4c width \u2026 x\u00b2",
    "aaaaaaaaaaaaaa --------------- ==== ....... ,,,,,",
    "   both ends   ",
]

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BLOCKS = """
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{{- bos_token }}
{%- if tools %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{% for message in messages %}
    {% if message.role == "skip" %}
        {% continue %}
    {% endif %}
    {%- if message.role == "assistant" %}
        {%- generation %}
        {{- message.content + eos_token }}
        {%- endgeneration %}
    {%- else %}
[{{ message.role | upper }}] {{ message.content | trim | tojson }}
    {% endif %}
{% endfor %}
{%- if add_generation_prompt %}[ASSISTANT]{% endif %}
{%- if enable_thinking is defined and enable_thinking %} thinking{% endif %}
"""

_TURNS = [
    {"role": "user", "content": "Is 1 < 2 & \"x\" > 'y'? Grüße, 日本"},
    {"role": "assistant", "content": "  Yes.  "},
    {"role": "user", "content": "Why?\n"},
]
_TOOL = {
    "type": "function",
    "function": {"name": "find", "parameters": {"type": "object", "properties": {"q": {}}}},
}
CHATS = [
    {"template": CHATML, "messages": _TURNS[:1]},
    {"template": CHATML, "messages": [{"role": "system", "content": "Short."}, *_TURNS]},
    {"template": CHATML, "messages": _TURNS[:2], "add_generation_prompt": False},
    {"template": BLOCKS, "messages": _TURNS},
    {"template": BLOCKS, "messages": [*_TURNS, {"role": "skip", "content": "no"}]},
    {
        "template": BLOCKS,
        "messages": _TURNS,
        "tools": [_TOOL],
        "variables": {"enable_thinking": True},
    },
]
