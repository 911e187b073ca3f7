"""What your transaction commits gets delivered."""
