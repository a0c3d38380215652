"""Whether a limit of output that a budget set has cut a reply."""

from __future__ import annotations

import pytest

from fde_ray.metering.shortening import LimitedReply, is_shortened

REPLIES = {
    "chat_that_ended_at_it": (LimitedReply(30, "length", 30, "provider"), True),
    "messages_that_ended_at_it": (LimitedReply(30, "max_tokens", 30, "provider"), True),
    "gemini_that_ended_a_little_before": (LimitedReply(30, "MAX_TOKENS", 28, "provider"), True),
    "responses_that_are_not_complete": (LimitedReply(30, "incomplete", 30, "provider"), True),
    "said_to_have_ended_at_it_and_not_counted": (LimitedReply(30, "length", None, None), True),
    "ended_by_itself_below_it": (LimitedReply(30, "stop", 29, "provider"), False),
    "called_a_tool_below_it": (LimitedReply(30, "tool_calls", 3, "provider"), False),
    "as_long_as_it_whatever_was_said": (LimitedReply(30, "stop", 30, "provider"), True),
    "longer_than_it": (LimitedReply(30, "stop", 31, "provider"), True),
    "estimated_below_it_and_ended_by_itself": (LimitedReply(30, "stop", 20, "estimated"), False),
    "counted_below_it_with_no_word": (LimitedReply(30, None, 20, "provider"), False),
    "estimated_below_it_with_no_word": (LimitedReply(30, None, 20, "estimated"), True),
    "nobody_says_anything": (LimitedReply(30, None, None, None), True),
    "not_counted_though_it_ended": (LimitedReply(30, "stop", None, "unknown"), True),
    "offline_below_it": (LimitedReply(30, None, 20, "offline"), False),
}


@pytest.mark.parametrize("case", REPLIES)
def test_rule_01_a_limit_shortens_a_reply_that_reached_it_or_that_nobody_measured(
    case: str,
) -> None:
    reply, expected = REPLIES[case]
    assert is_shortened(reply) is expected
