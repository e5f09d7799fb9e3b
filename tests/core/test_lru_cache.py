"""A cache holds what was used last, as much as it has room for."""

from __future__ import annotations

from codex_proxy.core.caches import LruCache


def test_the_entry_that_was_not_used_for_the_longest_time_is_dropped_first() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_entries_have_the_sizes_that_they_are_given_and_a_new_value_replaces_the_old_one() -> None:
    cache: LruCache[str, str] = LruCache(6, lambda key, value: len(value))
    cache.put("a", "12")
    cache.put("b", "345")
    cache.put("a", "678")
    assert (cache.get("a"), cache.get("b")) == ("678", "345")
    cache.put("c", "9")
    assert "a" not in cache
    cache.put("too large", "1234567")
    assert not any(key in cache for key in ("b", "c", "too large"))


def test_each_value_that_is_no_longer_kept_is_reported() -> None:
    dropped: list[int] = []
    cache: LruCache[str, int] = LruCache(2, on_drop=dropped.append)
    cache.put("a", 1)
    cache.put("a", 2)
    cache.put("b", 3)
    cache.put("c", 4)
    cache.drop("b")
    cache.clear()
    assert dropped == [1, 2, 3, 4]


def test_a_dropped_entry_makes_room() -> None:
    cache: LruCache[str, None] = LruCache(1)
    cache.put("a", None)
    cache.drop("a")
    cache.drop("a")
    cache.put("b", None)
    assert "b" in cache
