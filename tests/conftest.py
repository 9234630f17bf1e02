"""What every test may ask for. The servers have their own module."""

pytest_plugins = ["tests.servers", "tests.worlds", "tests.engines", "tests.workers", "tests.serving", "tests.stations"]
