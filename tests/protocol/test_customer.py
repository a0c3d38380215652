from __future__ import annotations

from fde_ray.protocol import anchors, customer
from tests.protocol.builders import PACK

HISTORY = (("A?", "a"), ("B?", "b"))


def test_rule_13_a_call_is_system_history_and_the_current_question() -> None:
    found = customer.messages(PACK, "REQUEST", "KNOWLEDGE", HISTORY, "C?")
    assert [m["role"] for m in found] == ["system", *("user", "assistant") * 2, "user"]
    assert [m["content"] for m in found[1:]] == ["A?", "a", "B?", "b", "C?"]
    assert anchors.customer_knowledge(found[0]["content"]) == ("REQUEST", "KNOWLEDGE")


def test_rule_13_each_knowledge_block_stands_once_between_its_tags() -> None:
    system = customer.messages(PACK, "REQUEST", "KNOWLEDGE", (), "C?")[0]["content"]
    assert "\n<instruction>\nREQUEST\n</instruction>\n" in system
    assert "\n<information>\nKNOWLEDGE\n</information>\n" in system
    assert system.count("KNOWLEDGE") == system.count("REQUEST") == 1


def test_rule_13_knowledge_with_braces_and_tags_stays_as_it_is() -> None:
    information = "a <instruction> b\n{{instruction}} </information> c"
    system = customer.messages(PACK, "REQUEST", information, (), "C?")[0]["content"]
    found = anchors.customer_knowledge(system)
    assert found == ("REQUEST", information)


def test_rule_14_the_placeholder_tells_the_agent_to_use_its_judgment() -> None:
    assert "judgment" in customer.placeholder_answer(PACK)


def test_another_text_has_no_knowledge_blocks() -> None:
    assert anchors.customer_knowledge("") is None
    assert anchors.customer_knowledge("<instruction>x</instruction>") is None
