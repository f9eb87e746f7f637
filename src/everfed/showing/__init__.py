"""How objects look: short texts, small HTML cards, plots, tables of pandas, and progress.

The lowest room: it draws numbers and words, and knows none of the classes that hold them.
"""
