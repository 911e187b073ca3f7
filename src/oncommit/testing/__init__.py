"""What users of the library need to test their own code."""
