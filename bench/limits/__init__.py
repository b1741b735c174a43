"""What holds under load: memory, and how long others wait.

- `memory`: the resident set while the store is away
- `holds`: for how long the largest requests hold the event loop
- `hostile`: what ordinary clients wait beside some that do not read; `deaf_clients`: these
"""
