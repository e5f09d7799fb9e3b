"""What the tests of upstreams share with those of the server."""

from tests.http.conftest import logged as logged
