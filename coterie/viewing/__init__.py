"""Looking at a run: its report, its plots, its episodes, and how it goes while it lasts."""
