"""Flow control: limits, queue settings, pauses and tiers, from the stored records to the rules that stores apply."""
