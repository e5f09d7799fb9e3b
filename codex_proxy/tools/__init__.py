"""The client's tools and output schemas: decides who answers a call of the model, checks answers, and puts what a
client does not send back (`replay`) into the history. No IO.
"""
