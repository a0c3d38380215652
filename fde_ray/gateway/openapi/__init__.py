"""What every port of ours serves, as OpenAPI 3.1 documents.

Pure, and made anew from the records that the routes parse; a test holds the documents to the routes
that the apps really have. `operations` says what a document is made of; `shims`, `dialects` and
`people` are its chapters. The control-plane serves its own; ports that pods reach serve none, and
`fde-ray serve openapi` prints any.
"""

from .documents import APIS, Api, document

__all__ = ["APIS", "Api", "document"]
