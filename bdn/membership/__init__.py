"""Who is there: adapters of the Membership port. All of them hand their findings to `Views`, which numbers them."""
