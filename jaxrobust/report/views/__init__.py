"""The sections of the robustness card in words, tables and pictures, each from its JSON alone."""
