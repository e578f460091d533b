"""Evidence for a job spec in its checkpoint: serializers in keyed state, and a bounded sample of records."""
