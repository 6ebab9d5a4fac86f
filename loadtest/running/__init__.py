"""One whole run: where it goes, whether it may begin, what it leaves. The order of things is `loadtest.run`'s."""
