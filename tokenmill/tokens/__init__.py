"""Tokenizer, packing, records, order and cache: documents in, packed TFRecord shards out."""
