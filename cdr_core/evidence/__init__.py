"""How far a checkpoint confirms its job spec: serializers in keyed state, and a bounded sample of records."""
