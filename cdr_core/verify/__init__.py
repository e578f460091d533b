"""The second reader: source and output of a recovery read again and compared, sharing no decoding with the pipeline.

It is written from the description of the formats alone and imports only errors and storage, so that a mistake in the
pipeline's reading would have to be made twice to go unnoticed. It is plain and slower on purpose.
"""
