# The pins of the default line.
import ./line.nix null
