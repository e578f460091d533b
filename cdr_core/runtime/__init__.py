"""Runs phases: request, driver, units on executors, workspace, results, and the commit set-up that phases share."""
