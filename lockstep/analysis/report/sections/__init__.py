"""The parts of the page, one function each: `View` in, markup out; a part without data is one line that states it."""
