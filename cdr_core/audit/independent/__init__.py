"""The second reader: reads source and output again, sharing no code with the pipeline that it judges."""
