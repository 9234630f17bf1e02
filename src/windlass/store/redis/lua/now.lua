-- The store's clock.
-- Output  microseconds
return stamp(now)
