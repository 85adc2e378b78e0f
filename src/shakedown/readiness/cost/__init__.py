"""What moving costs, what it saves, and what was done for it: payback, work per currency unit, the migration ledger.

Money is decimal, never binary floating point. Everything says where it comes from: *given* by the user, *measured* in a
record, *documented* by a source with a date. What nobody gave is listed as not given and counted nowhere.
"""
