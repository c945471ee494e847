from lockstep.agent.mark_buffer import MarkBuffer as MarkBuffer
