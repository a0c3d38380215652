"""The simulated customer that answers an agent's questions, and the panel that detects them.

`answers.answer_question` gives one answer (the caller asks strictly one at a time);
`detection.detect` collects the ballots on a reply that may hold questions.
"""

from .answers import BoundChat, CustomerAnswer, answer_question
from .detection import detect

__all__ = ["BoundChat", "CustomerAnswer", "answer_question", "detect"]
