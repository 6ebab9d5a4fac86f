"""What is to be sent, and when: the plan, its shapes and arrivals, recorded traces, the calls. Pure."""
