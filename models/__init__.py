"""Networks that come with blobnet: each module defines one, as a function that returns a Model."""
