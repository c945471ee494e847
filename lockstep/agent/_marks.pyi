from lockstep.agent.mark_buffer import MarkBuffer as PythonMarkBuffer

class MarkBuffer(PythonMarkBuffer):
    def channel(self) -> object: ...
