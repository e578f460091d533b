"""The independent reader: reads source and output of a recovery again and compares them, without the pipeline's code.

It is written from the description of the formats alone and imports only errors and storage, so that a reading mistake
goes unnoticed only if both readers make it. It favours plain code over speed.
"""
