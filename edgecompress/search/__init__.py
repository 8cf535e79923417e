"""Choosing one candidate per layer under a budget. Reads costs and tables; never talks to a device."""
