"""Where jobs live. `protocol` is what a store must implement, `data` and `flow` what goes in and out of it."""
